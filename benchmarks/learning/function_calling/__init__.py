"""Does a pretrained model of 135M parameters learn to call functions that it has never seen?"""

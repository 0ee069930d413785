"""Does a pretrained model of 135M parameters learn to search?"""

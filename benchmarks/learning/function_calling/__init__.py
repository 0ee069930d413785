"""Does a pretrained model of 135M parameters learn to call functions whose names it was not trained on?"""

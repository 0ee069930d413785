"""Does a pretrained model of 135M parameters learn to compute nested terms in words?"""

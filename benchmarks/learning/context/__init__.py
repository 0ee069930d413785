"""What is lost when a pretrained model does not see its whole history?"""

"""Does what is learned in other worlds carry over to policies and questions that are held back?"""

print(open("data/input.csv").read())

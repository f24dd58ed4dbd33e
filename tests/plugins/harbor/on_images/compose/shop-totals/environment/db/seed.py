import random
import sqlite3
import sys

numbers = random.Random(7)
db = sqlite3.connect(sys.argv[1])
db.execute("create table orders (id integer primary key, customer, cents, state)")
for number in range(137):
    customer = f"customer-{numbers.randrange(12):02}"
    state = numbers.choice(["paid", "paid", "open", "cancelled"])
    row = (number, customer, numbers.randrange(100, 90_000), state)
    db.execute("insert into orders values (?, ?, ?, ?)", row)
db.execute("insert into orders values (1000, 'customer-99', 500, 'open')")
db.commit()

import sqlite3

db = sqlite3.connect("file:/app/shop.db?mode=ro", uri=True)
customers = dict(db.execute("select id, email from customers"))
assert customers == {1: "ann@x.org", 2: "bob@x.org", 4: "cy@x.org", 7: "dee@x.org"}, customers
merged = {3: 1, 6: 1, 5: 2}
expected = {}
for n in range(1, 41):
    customer = n * n % 7 + 1
    expected[n] = (merged.get(customer, customer), n * 125)
orders = {
    id_: (customer, cents)
    for id_, customer, cents in db.execute("select id, customer_id, cents from orders")
}
assert orders == expected
indexes = {name: unique for _, name, unique, *_ in db.execute("pragma index_list(customers)")}
assert indexes.get("one_email") == 1, indexes
assert [name for _, _, name in db.execute("pragma index_info(one_email)")] == ["email"]

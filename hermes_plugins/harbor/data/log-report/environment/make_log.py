state = 7
paths = ("/", "/cart", "/cart/pay", "/search", "/about")
for n in range(3000):
    state = state * 1103515245 + 12345 & 0x7FFFFFFF
    path = paths[(state >> 8) % 11 % 5]
    query = f"?id={state % 97}" if state >> 4 & 1 else ""
    status = 503 if (state >> 12) % 17 == 0 else 404 if (state >> 12) % 13 == 0 else 200
    seconds = ((state >> 5) % 900 + 3) / 1000
    line = f"2025-05-04T{10 + n // 600:02}:{n // 10 % 60:02}:{n % 60:02}Z 10.0.0.{state % 9} GET {path}{query} {status} {seconds:.3f}"
    print(line[: len(line) - 30] if n % 211 == 5 else line)

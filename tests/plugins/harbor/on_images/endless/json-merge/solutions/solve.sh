echo '{"a": {"x": 1, "y": 3}, "c": [2]}' > /home/user/merged.json

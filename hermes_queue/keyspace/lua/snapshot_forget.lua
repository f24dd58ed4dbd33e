-- Drop the note of a snapshot that the provider has no more, unless it names another by now.
--
-- KEYS[1] snapshot:{hash}   hash: place, name, id
-- ARGV[1] id of the snapshot that is gone
-- Returns 1 if the note was dropped, else 0.
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])

-- Drop the note of a snapshot that is gone at the provider, unless the note names another one by now.
--
-- @key snapshot = snapshot:{hash}  place, name, id
-- @arg id  of the snapshot that is gone
-- Returns 1 if the note was dropped, else 0.
if redis.call('HGET', snapshot, 'id') ~= id then return 0 end
return redis.call('DEL', snapshot)

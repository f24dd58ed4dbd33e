-- Release the key of the process that reads a consumer group, unless another one has it by now.
--
-- @key reader = sink:{group}
-- @arg holder  as it is in the key
-- Returns 1 if it was released.
if redis.call('GET', reader) ~= holder then return 0 end
return redis.call('DEL', reader)

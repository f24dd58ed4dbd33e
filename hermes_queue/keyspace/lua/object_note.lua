-- @include time
-- Note that an object is about to be stored for a trajectory, before it is stored.
--
-- @key objects  "<trajectory id> <url>" by the time (s) of the next check whether it is needed
-- @key doomed = objects:doomed  objects that are being deleted, in the same form
-- @arg object  "<trajectory id> <url>"
-- @arg grace_s  until the first check
-- Returns 1, or 0 if this very object is being deleted. Noting it nevertheless would let a record be
-- published whose object disappears a moment later.
if redis.call('ZSCORE', doomed, object) then return 0 end
redis.call('ZADD', objects, stamp(now + tonumber(grace_s)), object)
return 1

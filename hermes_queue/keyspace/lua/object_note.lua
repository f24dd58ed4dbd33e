-- @include time
-- Note that an object is about to be put into the store for a trajectory, before it is.
--
-- @key objects  "<trajectory id> <url>" by the time (s) at which to look whether it is needed
-- @key doomed = objects:doomed  likewise those that are being deleted
-- @arg object  "<trajectory id> <url>"
-- @arg grace_s  until it is looked for
-- Returns 1, or 0 when that very object is being deleted: nothing was noted.
if redis.call('ZSCORE', doomed, object) then return 0 end
redis.call('ZADD', objects, stamp(now + tonumber(grace_s)), object)
return 1

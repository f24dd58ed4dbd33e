-- Note that an object is about to be put into the store for a trajectory, before it is.
--
-- KEYS[1] objects: "<trajectory id> <url>" by the time (s) at which to look whether it is needed
-- KEYS[2] objects:doomed: likewise those that are being deleted
-- ARGV[1] "<trajectory id> <url>"  ARGV[2] seconds until it is looked for
-- Returns 1, or 0 when that very object is being deleted: nothing was noted.
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 0 end
local t = redis.call('TIME')
local due = tonumber(t[1]) + tonumber(t[2]) / 1e6 + tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], string.format('%.6f', due), ARGV[1])
return 1

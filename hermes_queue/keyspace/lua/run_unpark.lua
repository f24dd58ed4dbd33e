-- include: entries
-- Put parked jobs of a run that goes on back into `delayed`, due at once. A batch per call.
--
-- KEYS[1] run:{id}  KEYS[2] run:{id}:parked (set)  KEYS[3] delayed
-- ARGV[1] prefix  ARGV[2] most jobs
-- Returns {jobs put back, jobs still parked}; {0, 0} when the run is not active: the jobs
-- of one that was paused again stay where they are.
if redis.call('HGET', KEYS[1], 'state') ~= 'active' then return {0, 0} end
local t = redis.call('TIME')
local stamp = string.format('%.6f', tonumber(t[1]) + tonumber(t[2]) / 1e6)
local n = 0
for _, id in ipairs(redis.call('SPOP', KEYS[2], ARGV[2])) do
  if fields_of(ARGV[1] .. 'traj:' .. id, 'state')[1] == 'queued' then
    redis.call('ZADD', KEYS[3], stamp, id)
    n = n + 1
  end
end
return {n, redis.call('SCARD', KEYS[2])}

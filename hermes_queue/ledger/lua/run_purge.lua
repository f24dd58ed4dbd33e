-- Forget a run of which nothing waits or runs.
--
-- KEYS[1] run:{id}  KEYS[2] run:{id}:claimed  KEYS[3] run:{id}:parked  KEYS[4] runs
-- KEYS[5] run:{id}:failed
-- ARGV[1] run id  ARGV[2...] names of the counters of trajectories that have ended
-- Returns -1 when it is unknown, else the number of trajectories that wait or run; only
-- when that is 0 anything was deleted.
local total = redis.call('HGET', KEYS[1], 'total')
if not total then return -1 end
local open = tonumber(total)
for i = 2, #ARGV do open = open - tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0') end
if open > 0 then return open end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[5])
redis.call('ZREM', KEYS[4], ARGV[1])
return 0

-- Forget a run of which nothing waits or runs, in two steps: between them the caller closes, with
-- `run_cancel`, groups whose producer never sent the rest, and deletes all with `run_erase`.
--
-- KEYS[1] run:{id}  KEYS[2] run:{id}:claimed  KEYS[3] run:{id}:parked  KEYS[4] runs
-- KEYS[5] failed:{id}  KEYS[6] purged:{id}, see include/lives.lua
-- ARGV[1] run id  ARGV[2] close | forget  ARGV[3] TTL of a run, s  ARGV[4...] names of the counters of trajectories that have ended
-- Returns -1 when it is unknown, else the number of trajectories that wait or run; only
-- when that is 0 anything was done: `close` has cancelled the run, `forget` deleted it. May be
-- repeated.
local total = redis.call('HGET', KEYS[1], 'total')
if not total then return -1 end
local open = tonumber(total)
for i = 4, #ARGV do open = open - tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0') end
if open > 0 then return open end
if ARGV[2] == 'close' then
  redis.call('HDEL', KEYS[1], 'reason')  -- first, so that a Redis that is full lets it pass, see trim.lua
  redis.call('HSET', KEYS[1], 'state', 'cancelled')
  redis.call('INCR', KEYS[6])
  redis.call('EXPIRE', KEYS[6], ARGV[3])
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[5])
redis.call('ZREM', KEYS[4], ARGV[1])
return 0

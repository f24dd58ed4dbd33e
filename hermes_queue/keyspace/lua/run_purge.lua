-- Forget a run of which nothing waits or runs, in two steps: between them the caller closes, with
-- `run_cancel`, groups whose producer never sent the rest, and deletes all with `run_erase`.
--
-- @key run = run:{run_id}, claimed = run:{run_id}:claimed, parked = run:{run_id}:parked, runs
-- @key failed = failed:{run_id}, purged = purged:{run_id}  see include/lives.lua
-- @arg run_id
-- @arg step  close | forget
-- @arg run_ttl_s
-- @arg ended[]  names of the counters of trajectories that have ended
-- Returns -1 when it is unknown, else the number of trajectories that wait or run; only
-- when that is 0 anything was done: `close` has cancelled the run, `forget` deleted it. May be
-- repeated.
local total = redis.call('HGET', run, 'total')
if not total then return -1 end
local open = tonumber(total)
for _, counter in ipairs(ended) do open = open - tonumber(redis.call('HGET', run, counter) or '0') end
if open > 0 then return open end
if step == 'close' then
  redis.call('HDEL', run, 'reason')  -- first, so that a Redis that is full lets it pass, see trim.lua
  redis.call('HSET', run, 'state', 'cancelled')
  redis.call('INCR', purged)
  redis.call('EXPIRE', purged, run_ttl_s)
  return 0
end
redis.call('DEL', run, claimed, parked, failed)
redis.call('ZREM', runs, run_id)
return 0

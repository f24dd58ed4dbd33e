-- Forget a run without waiting or running trajectories, in two steps. In between the caller closes, with
-- `run_cancel`, groups that were enqueued only in part, and deletes all groups with `run_erase`.
--
-- @key run = run:{run_id}, claimed = run:{run_id}:claimed, parked = run:{run_id}:parked, runs
-- @key ahead = run:{run_id}:ahead, held = run:{run_id}:held, paced_runs = paced
-- @key goodput = goodput:{run_id}, series = series:{run_id}, slowest = slowest:{run_id}
-- @key failed = failed:{run_id}, purged = purged:{run_id}  see include/lives.lua
-- @arg run_id
-- @arg step  close | forget
-- @arg run_ttl_s
-- @arg ended[]  names of the counters of ended trajectories
-- Returns -1 if the run is unknown, else the number of trajectories that wait or run. Only if that is 0
-- anything is done: `close` cancels the run, `forget` deletes it. May be repeated.
local total = redis.call('HGET', run, 'total')
if not total then return -1 end
local open = tonumber(total)
for _, counter in ipairs(ended) do open = open - tonumber(redis.call('HGET', run, counter) or '0') end
if open > 0 then return open end
if step == 'close' then
  redis.call('HDEL', run, 'reason')  -- first, so that a full Redis accepts the script, see trim.lua
  redis.call('HSET', run, 'state', 'cancelled')
  redis.call('INCR', purged)
  redis.call('EXPIRE', purged, run_ttl_s)
  return 0
end
redis.call('DEL', run, claimed, parked, failed, ahead, held, goodput, series, slowest)
redis.call('ZREM', runs, run_id)
redis.call('ZREM', paced_runs, run_id)
return 0

-- @include accounts, begin/pace, begin/budget, begin/shared, begin/breakers
-- Reasons to hold a job back for a while, in this order; it uses no attempt. It waits in `delayed`, or for its
-- run's trainer, or parked.

-- Whether too many results wait for readers to let another group begin.
local function is_back_pressure(g)
  return not g.begun
    and (redis.call('XLEN', results) >= tonumber(soft_max_groups)
      or tonumber(redis.call('GET', unread_bytes) or '0') >= tonumber(soft_max_bytes))
end

local function hold(free_at)
  healing('ZREM', waiting, id)
  healing('ZADD', delayed, stamp(math.min(free_at, now + 30)), id)
  return 'held'
end

-- `held`, `paused`, `paced`, `over_budget` or nil, and a warning about the run's budget or ''.
local function reason_to_wait(job, g, r)
  if r and r.max_ahead and paced(g, r) then return 'paced', '' end
  local lane, endpoint = breaker_of(job.lane), endpoint_breaker_of(job)
  local free_at = math.max(breaker_free_at(lane, run_of(id)), breaker_free_at(endpoint, run_of(id)))
  if free_at > now then return hold(free_at), '' end
  local later = now + 5 + 5 * (now % 1)
  if is_back_pressure(g) then return hold(later), '' end
  local over, told, wanted, kept, warning = nil, '', nil, nil, ''
  if not job.handed and not is_calm and redis.call('EXISTS', budgets) == 1 then
    over, told, wanted = shared_hold(job)
  end
  if over then return over, told end
  if not job.handed and is_budgeted(r) then kept, warning = budget_reserve(job.job, r) end
  if kept == 'paused' then return turn_away(kept, job), warning end
  if kept then return hold(later), warning end
  if wanted then shared_reserve(wanted) end
  if lane.state then redis.call('HSET', lane.key, 'probe', stamp(now)) end
  if endpoint and endpoint.state then redis.call('HSET', endpoint.key, 'probe', stamp(now)) end
  return nil, warning
end

-- The same. A job whose reason cannot be found out waits, as a producer can write anything into its run: if it
-- remained the next one, no job of the lane would begin any more.
local function held_back(job, g, r)
  local whole, verdict, warning = pcall(reason_to_wait, job, g, r)
  if whole then return verdict, warning end
  local is_told = redis.call('HSETNX', traj, 'unreadable', '1') == 0
  local why = string.sub(type(verdict) == 'table' and verdict.err or tostring(verdict), 1, 200)
  return hold(now + 30), is_told and '' or id .. ' waits, as a budget or its limits cannot be read: ' .. why
end

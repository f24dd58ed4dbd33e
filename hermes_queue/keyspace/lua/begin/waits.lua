-- Whether a job that a message names waits, so that the message does not stand for it.

-- The leaf of a job, chosen or not. While it runs and after an older version has taken it back, its field has more
-- than the name, and a blank.
local function leaf_of(job, way)
  if way and way.leaf then return way.leaf end
  if job.leaf and job.leaf ~= '' and not string.find(job.leaf, ' ', 1, true) then return job.leaf end
  return name_of_leaf(job.lane, redis.call('HGET', run, 'team'), run_of(id), redis.call('HGET', group, 'env'))
end

local function score_in(key) return tonumber(redis.pcall('ZSCORE', key, id)) end

-- Whether the named job was set aside, until a mover finds that it may begin.
local function is_aside(job)
  if score_in(run .. ':held') or redis.pcall('SISMEMBER', run .. ':parked', id) == 1 then return true end
  return redis.call('EXISTS', budgets) == 1 and shared_waits(job)
end

-- Whether as many of its run, team, env or lane, or of the fleet, run as may.
local function is_beyond(job)
  local lane, team, run_id, env = parts_of_leaf(leaf_of(job))
  if not lane then return false end
  local row = redis.call('HGET', sched, 'lane|' .. lane) or nil
  if row and is_exhausted('lane|' .. lane, row, tonumber(redis.call('HGET', running, 'lane|' .. lane) or '') or 0)
    or fleet_row and is_exhausted('fleet', fleet_row, redis.call('ZCARD', leases)) then return true end
  return exhausted_limit({team = team, run_id = run_id, env = env, r = accounts(run, 'max_running')}) ~= nil
end

-- Whether a named job waits: in a leaf, from which it is not chosen now, or set aside, or after a hand-back until its
-- delay is over (an older mover has changed that time when it sends the job's message), or at a limit. If it stands in
-- no leaf then, `reconcile` puts it into one.
local function waits(job)
  if job.state ~= 'queued' or job.cancel then return false end
  if job.leaf == '' then
    local score, due = score_in(delayed), tonumber(job.due or '')
    if score and due and math.abs(score - due) < 1e-5 then return true end
  elseif job.leaf and score_in(jobs_of(job.leaf)) then return true end
  for _, is_so in ipairs({is_aside, is_beyond}) do
    local whole, answer = pcall(is_so, job)
    if whole and answer then return true end
  end
  return false
end

-- @lazy block
-- @include sched/shut
-- Ways to jobs of which none may begin now, because their run, team or env has as many running jobs as it may
-- have, or has used its quota.

-- What an operator has set for the run, team and env of a way, by kind, and their running jobs.
local function limits_of(way)
  local names = {run = 'run|' .. way.run_id, team = 'team|' .. way.team, env = 'env|' .. way.env}
  local rows = redis.call('HMGET', sched, names.run, names.team, names.env)
  local counts = redis.call('HMGET', running, names.team, names.env)
  way.rows = {run = rows[1] or nil, team = rows[2] or nil, env = rows[3] or nil}
  return names, {run = tonumber(way.r and way.r.running or '') or 0, team = tonumber(counts[1] or '') or 0,
    env = tonumber(counts[2] or '') or 0}
end

local function exhausted_limit(way)
  way.rows = {}
  local most = tonumber(way.r and way.r.max_running or '')
  if most and (tonumber(way.r.running or '') or 0) >= most then return 'run|' .. way.run_id end
  if not has_limits then return nil end
  local names, counts = limits_of(way)
  for _, level in ipairs({'team', 'run', 'env'}) do
    local row = way.rows[level]
    if row and is_exhausted(names[level], row, counts[level]) then return names[level] end
  end
end

-- Whether the way is blocked; then it is shut.
local function block(way)
  local name = exhausted_limit(way)
  if name then shut_at(name, way.leaf) end
  return name
end

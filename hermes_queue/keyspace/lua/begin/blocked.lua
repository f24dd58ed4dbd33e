-- @lazy block
-- Ways to jobs of which none may begin now, because their run, team or env has as many running jobs as it may
-- have, or has used its quota. They are shut, so that nobody looks at them again, and are noted in
-- sched:blocked:{name} until one of those jobs ends or the quota's window does.

-- What an operator has set for the run, team and env of a way, by kind, and their running jobs.
local function limits_of(way)
  local names = {run = 'run|' .. way.run_id, team = 'team|' .. way.team, env = 'env|' .. way.env}
  local rows = redis.call('HMGET', sched, names.run, names.team, names.env)
  local counts = redis.call('HMGET', running, names.team, names.env)
  way.rows = {run = rows[1] or nil, team = rows[2] or nil, env = rows[3] or nil}
  return names, {run = tonumber(way.r and way.r.running or '') or 0, team = tonumber(counts[1] or '') or 0,
    env = tonumber(counts[2] or '') or 0}
end

local function exhausted_level(way)
  way.rows = {}
  local most = tonumber(way.r and way.r.max_running or '')
  if most and (tonumber(way.r.running or '') or 0) >= most then return 'run', 'run|' .. way.run_id end
  if not has_limits then return nil end
  local names, counts = limits_of(way)
  for _, level in ipairs({'team', 'run', 'env'}) do
    local row = way.rows[level]
    if row and is_exhausted(names[level], row, counts[level]) then return level, names[level] end
  end
end

-- Whether the way is blocked; then it is shut.
local function block(way)
  local level, name = exhausted_level(way)
  if not level then return false end
  local step = steps_of(way)[level == 'env' and 1 or level == 'run' and 2 or 3]
  shut_child(step[1], step[2])
  local key = prefix .. 'sched:blocked:' .. name
  redis.call('SADD', key, way.leaf)
  redis.call('EXPIRE', key, KEPT_S)
  redis.call('ZADD', prefix .. 'sched:blocked', stamp(now), name)
  redis.call('EXPIRE', prefix .. 'sched:blocked', KEPT_S)
  return true
end

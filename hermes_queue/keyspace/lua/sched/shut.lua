-- @include sched/tree
-- Shut the way to a leaf at the limit `name` of its run, team or env: nobody looks at it again until one of those jobs
-- ends or the quota's window does. It is noted in sched:blocked:{name}.
local function shut_at(name, leaf)
  local lane, team, run_id, env = parts_of_leaf(leaf)
  local in_team, kind = lane .. '|' .. team, string.match(name, '^%a+')
  if kind == 'env' then shut_child(in_team .. '|' .. run_id, env)
  elseif kind == 'run' then shut_child(in_team, run_id)
  else shut_child(lane, team) end
  local key = prefix .. 'sched:blocked:' .. name
  redis.call('SADD', key, leaf)
  redis.call('ZADD', prefix .. 'sched:blocked', stamp(now), name)
  for _, each in ipairs({key, prefix .. 'sched:blocked'}) do redis.call('EXPIRE', each, KEPT_S) end
end

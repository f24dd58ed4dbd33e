-- @lazy keep_letter
-- @include tasks
-- Dead letters, and poison items: those under which workers died.

-- A letter ends with the log of the worker that died last, or that hit the bug.
local function write_letter(job, facts, failure)
  local known = hash(traj, 'died', 'earlier')
  local died = known.died or ''
  local killed = failure.cause == 'poison' and string.match(died, '%d+ (%S+) [^\n]*\n$')
  local log = redis.call('GET', prefix .. 'log:' .. (killed or owner))
  return redis.call('XADD', dead, '*', 'cause', failure.cause, 'reason', failure.reason,
    'stage', failure.stage, 'trajectory_id', id, 'run_id', run_id, 'group_id', group_id,
    'env', facts.env or '', 'instance_id', redis.call('HGET', group, 'instance_id') or '', 'owner', owner, 'attempts', failure.attempts,
    'died', died, 'log', log or '', 'job', job.job or '', 'earlier', known.earlier or '')
end

-- Remember a poison item, for isolate.lua; forget expired ones.
local function remember_item(letter, failure)
  local flat = redis.call('HGETALL', poison)
  for i = 1, #flat, 2 do
    if cjson.decode(flat[i + 1])['until'] < now then redis.call('HDEL', poison, flat[i]) end
  end
  redis.call('HSET', poison, failure.item, cjson.encode({letter = letter, trajectory_id = id,
    ['until'] = now + failure.remember_s}))
  redis.call('EXPIRE', poison, math.ceil(failure.remember_s))
end

-- Count the deaths in what is known of the task, for later runs. Here, because a worker's own counts are
-- lost with it.
local function count_deaths(failure)
  local _, deaths = string.gsub(redis.call('HGET', traj, 'died') or '', '\n', '')
  local news = {deaths = deaths, last = now}
  remember_task(failure.task, stored_task(failure.task), news, failure.tasks_ttl_s)
end

-- `failure`: a dead one.
local function keep_letter(job, facts, failure)
  local letter = write_letter(job, facts, failure)
  if failure.item then remember_item(letter, failure) end
  if failure.task then count_deaths(failure) end
end

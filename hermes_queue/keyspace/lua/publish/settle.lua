-- @include budget, totals, journal, sched/freed
-- Settles ended trajectories, and counts them.

-- An unscored record counts as measured everywhere but where scores are compared.
local is_measured = score ~= ''
local has_score = is_measured and score ~= 'unscored'
local its_run = readable_accounts(run, 'settled', 'finished', 'spent:slot_s')
if its_run then its_run.is_saved_later = true end  -- the slot-time, with the counts
local function count(name, by)  -- as in `budget_book`
  if its_run then redis.pcall('HINCRBY', run, name, by or 1) end
end

-- Save the run's slot-time and several counts, of which `its_run` has the sums.
local function save_sums(names, by)
  if not its_run then return end
  local flat = {}
  for i, name in ipairs(names) do
    local sum = its_run[name] or '0'
    if #sum > 15 or not string.find(sum, '^%-?%d+$') then count(name, by[i]) else
      flat[#flat + 1], flat[#flat + 2] = name, string.format('%d', sum + by[i])
    end
  end
  if type(its_run['spent:slot_s']) == 'number' then
    flat[#flat + 1], flat[#flat + 2] = 'spent:slot_s', stamp(its_run['spent:slot_s'])
  end
  if flat[1] then redis.call('HSET', run, unpack(flat)) end
  its_run.is_saved_later = false
end

-- Remove a trajectory from everything that would run it, for good. `job`: its state, reservation, journal, hand-over
-- and `begun`. `spent`: as in the budget, for our own trajectory, which is counted elsewhere; nil for any other.
-- Returns a warning about the budget or ''.
local function settle(key, its_id, job, becomes, spent)
  drop_journal(prefix, key, its_id, job)
  drop_handover(prefix, key, its_id, job)
  local declared = job.shared and (job.job or redis.call('HGET', key, 'job'))
  redis.call('HDEL', key, 'job', 'attempts', 'reserved', 'shared', 'leaf')
  redis.call('HSET', key, 'state', becomes)
  redis.call('EXPIRE', key, finished_ttl_s)
  redis.call('ZREM', leases, its_id)
  if job.state == 'running' then
    if not spent then count('running', -1) end
    freed(job.leaf)
  else  -- a running job waits nowhere: each of these holds queued jobs alone
    healing('ZREM', delayed, its_id)
    healing('ZREM', waiting, its_id)
    healing('SREM', run .. ':parked', its_id)
    take_out(job.leaf, its_id)
    if its_run and its_run.max_ahead then healing('ZREM', run .. ':held', its_id) end
    if not spent then return '' end
  end
  job.held_s = job.state == 'running' and leased_s(job.begun, now) or 0
  if job.shared then shared_settle(job.shared, declared, run, spent, job.held_s) end
  return budget_book(run, its_run, job.reserved, spent, now, nil, job.held_s)
end

-- Store the body. In later lives it has a distinct name, under which its object is then listed.
local function keep_body(name)
  put_body(prefix .. 'body:' .. name)
  redis.call('INCRBY', unread_bytes, body_bytes)
  if object ~= '' and name ~= id then
    local due = redis.call('ZSCORE', objects, object)
    redis.call('ZREM', objects, object)
    redis.call('ZADD', objects, due, name .. string.sub(object, #id + 1))
  end
end

local function count_end(job, facts, failure)
  if not is_measured then count('failed') end
  save_sums({'settled', 'finished', 'running'}, {1, is_measured and 1 or 0, job.state == 'running' and -1 or 0})
  local cause = failure.cause
  total(totals, 1, 'trajectories', facts.env, has_score and 'scored' or is_measured and score or cause == 'cancelled' and cause or 'failed')
  if cause and cause ~= 'cancelled' then total(totals, 1, 'failures', facts.env, cause) end
  if failure.dead then total(totals, 1, 'dead_letters', cause) end
  total_spent(totals, cost_usd, tokens)
end

-- @lazy shared_hold, shared_reserve
-- @include shared_budget
-- A job whose env, team or model has a budget without room is set aside in budget-held:{name} until there is
-- some: the next window, a higher limit, or others that need less than was reserved. budget_release puts
-- it back, in the order in which jobs came.

local function set_aside(name, a, why)
  local held = prefix .. 'budget-held:' .. name
  healing('ZREM', delayed, id)
  healing('ZREM', waiting, id)
  redis.call('ZADD', held, 'NX', its_turn(), id)
  redis.call('EXPIRE', held, HELD_S)
  redis.call('ZADD', paced_runs, 'NX', stamp(now), BUDGET_MARK .. name)
  if redis.call('HGET', a.key, 'warned') == (a.window or '-') then return '' end
  redis.call('HSET', a.key, 'warned', a.window or '-')
  return 'its jobs wait: the budget of ' .. name .. ' has no room (' .. why .. ')'
end

-- `over_budget`, a warning or ''; else nil, '' and what has to be reserved.
local function shared_hold(job)
  local limits, names = shared_facts(job.job, redis.call('HGET', run, 'team') or nil)
  if #names == 0 then return nil, '' end
  local known, wanted = redis.call('HMGET', prefix .. 'budgets', unpack(names)), {}
  local room = ' ' .. (redis.call('HGET', traj, 'room') or '') .. ' '
  for i, name in ipairs(names) do
    if known[i] then
      local a = shared_account(name)
      local want = shared_want(a, limits)
      local why = shared_full(a, want, {})
      -- Those that wait go first.
      if not why and redis.call('EXISTS', prefix .. 'budget-held:' .. name) == 1
        and not string.find(room, ' ' .. name .. ' ', 1, true) then
        why = 'others wait'
      end
      if why then return 'over_budget', set_aside(name, a, why) end
      wanted[name], want.born = want, a.born
    end
  end
  return nil, '', next(wanted) and wanted
end

local function shared_reserve(wanted)
  for name, want in pairs(wanted) do
    local key = prefix .. 'budget:' .. name
    redis.call('HINCRBY', key, 'running', 1)
    for _, amount in ipairs(SHARED) do
      if want[amount] > 0 then redis.call('HINCRBYFLOAT', key, 'reserved:' .. amount, want[amount]) end
    end
  end
  redis.call('HDEL', traj, 'room')
  redis.call('HSET', traj, 'shared', cjson.encode(wanted))
end

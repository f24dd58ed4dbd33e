-- @lazy reopen, spend
-- @include sched/tree, sched/put, sched/rows, sched/ticket
-- What was shut at a limit, and what counts towards quotas.

-- Let ways that were shut at a limit be looked at again.
local function reopen(name, most)
  local key = prefix .. 'sched:blocked:' .. name
  for _, leaf in ipairs(redis.call('SPOP', key, most)) do
    local lane = parts_of_leaf(leaf)
    local first = lane and redis.call('ZRANGE', jobs_of(leaf), 0, 0)[1]
    if first then
      open_way(leaf)
      if not has_messages(lane) then send_tickets(lane, 1, first) end
    end
  end
end

-- Count slot-time in the quotas of these names.
local function spend(names, seconds)
  for _, name in ipairs(names) do
    local row = redis.call('HGET', prefix .. 'sched', name) or nil
    if setting(row, 'quota_h') and setting(row, 'window_s') then
      -- Not by INCRBYFLOAT: in a script it corrupts the memory of Redis 6.2.
      local key = spent_key(name, row)
      local spent = (tonumber(redis.call('GET', key) or '') or 0) + seconds
      redis.call('SET', key, string.format('%.3f', spent), 'EX', math.ceil(2 * setting(row, 'window_s')))
    end
  end
end

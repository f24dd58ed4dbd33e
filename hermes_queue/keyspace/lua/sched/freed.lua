-- @include sched/tree, sched/rows, sched/ticket
-- A job that ran has ended, or waits again: its slot-time is known. Nothing here may keep a job from ending, so
-- errors (a key of another type, which a producer could write) are left to `sched_tick`.
local REOPENED = 4  -- ways that one freed slot opens again

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

local function spend(names, seconds)
  for _, name in ipairs(names) do
    local row = redis.call('HGET', prefix .. 'sched', name) or nil
    if setting(row, 'quota_h') and setting(row, 'window_s') then
      local key = spent_key(name, row)
      redis.call('INCRBYFLOAT', key, string.format('%.3f', seconds))
      redis.call('EXPIRE', key, math.ceil(2 * setting(row, 'window_s')))
    end
  end
end

local function give_back(marker)
  local since, began, is_bounded, leaf = string.match(marker, '^(%S+) (%S+) (%d) (.+)$')
  local key, seconds = prefix .. 'sched:running', math.max(0, now - tonumber(since))
  local known = redis.call('HMGET', key, 'r|' .. leaf, 'c|' .. leaf, 'limits')
  local r, c = math.max(0, (tonumber(known[1] or '') or 1) - 1), tonumber(known[2] or '') or 0
  local fields = {'r|' .. leaf, r, 'c|' .. leaf, string.format('%.3f', c - tonumber(began) - seconds)}
  local lane, team, run_id, env = parts_of_leaf(leaf)
  if known[3] then
    for i, name in ipairs({'lane|' .. lane, 'team|' .. team, 'env|' .. env}) do
      local count = tonumber(redis.call('HGET', key, name) or '') or 1
      fields[3 + 2 * i], fields[4 + 2 * i] = name, math.max(0, count - 1)
    end
  end
  redis.call('HSET', key, unpack(fields))
  if known[3] or is_bounded == '1' then
    local names = {'run|' .. run_id, 'team|' .. team, 'env|' .. env}
    spend(names, seconds)
    spend({'lane|' .. lane}, seconds)
    for _, name in ipairs(names) do reopen(name, REOPENED) end
  end
end

-- `marker`: the job's field `slot`, nil = it is not accounted for.
local function freed(marker)
  if marker and marker ~= '' then pcall(give_back, marker) end
end

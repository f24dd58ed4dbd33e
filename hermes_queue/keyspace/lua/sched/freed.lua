-- @include leased, sched/leaf, sched/reopen
-- A job that ran has ended, or waits again: its slot-time is known. Nothing here may keep a job from ending, so
-- errors (a key of another type, which a producer could write) are left to `sched_tick`.
local REOPENED = 4  -- ways that one freed slot opens again

local function give_back(marker)
  local since, began, is_bounded, leaf = string.match(marker, '^(%S+) (%S+) (%d) (.+)$')
  if not since then return end  -- an older version has begun it
  local key, seconds, at = prefix .. 'sched:running', leased_s(since, now), tonumber(began)
  local known = redis.call('HMGET', key, leaf, 'limits')
  local r, c = counts_in(known[1])
  if not at or not (math.abs(at - now) < 1e9) then at = now - seconds end  -- a producer could write anything
  -- A job whose leaf has lost its count is in no sum: it would be charged since 1970.
  local fields = {leaf, string.format('%d %.3f', math.max(0, r - 1), r > 0 and c - at - seconds or 0)}
  local is_limited = known[2] or is_bounded == '1'
  local lane, team, run_id, env
  if is_limited then lane, team, run_id, env = parts_of_leaf(leaf) end
  if known[2] then
    for i, name in ipairs({'lane|' .. lane, 'team|' .. team, 'env|' .. env}) do
      local count = tonumber(redis.call('HGET', key, name) or '') or 1
      fields[1 + 2 * i], fields[2 + 2 * i] = name, math.max(0, count - 1)
    end
  end
  redis.call('HSET', key, unpack(fields))
  if is_limited then
    local names = {'run|' .. run_id, 'team|' .. team, 'env|' .. env}
    spend(names, seconds)
    spend({'lane|' .. lane, 'fleet'}, seconds)
    for _, name in ipairs(names) do reopen(name, REOPENED) end
  end
end

-- `marker`: the job's field `leaf` while it ran; nil = it is not accounted for.
local function freed(marker)
  if marker and marker ~= '' then pcall(give_back, marker) end
end

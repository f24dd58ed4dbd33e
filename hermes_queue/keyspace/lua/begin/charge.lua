-- Account for a job that begins. The hash sched:running has for each leaf the number r of its running jobs and a sum
-- c, from which the slot-time follows that was not charged yet, without a look at each of them:
-- r * (at + RUNNING_S) - c. It is charged here where others compete, else by `sched_tick`.

-- What stands in the job's field `leaf` while it runs, for `sched/freed.lua`.
local function marker_of(leaf, way)
  return now_text .. ' ' .. stamp(at) .. (way and way.r and way.r.max_running and ' 1 ' or ' 0 ') .. leaf
end

-- Counts of running jobs, of which those of the lane, team and env matter to limits alone.
local function add_running(leaf, r, c)
  local fields = {leaf, string.format('%d %.3f', r, c)}
  if has_limits then
    local lane, team, _, env = parts_of_leaf(leaf)
    for i, name in ipairs({'lane|' .. lane, 'team|' .. team, 'env|' .. env}) do
      fields[1 + 2 * i], fields[2 + 2 * i] = name, (tonumber(redis.call('HGET', running, name) or '') or 0) + 1
    end
  end
  redis.call('HSET', running, unpack(fields))
end

local function counts_of(leaf)
  local r, c = counts_in(redis.call('HGET', running, leaf))
  return r + 1, c
end

-- A job that was named, and not chosen.
local function charge_named(leaf)
  has_limits = redis.call('HGET', sched, 'limits')
  local r, c = counts_of(leaf)
  add_running(leaf, r, c + at)
  -- An older version has sent it: without this nobody would charge or forget the leaf.
  if healing('ZADD', prefix .. 'sched:leaves', 'NX', now_text, leaf) == 1 then
    redis.call('EXPIRE', prefix .. 'sched:leaves', KEPT_S)
  end
end

-- Whether jobs wait in other lanes of this call.
local function other_lanes_wait(own)
  local keys = {}
  for _, lane in ipairs(lanes) do
    if lane ~= own then keys[#keys + 1] = open_set(lane) end
  end
  return keys[1] and redis.call('EXISTS', unpack(keys)) > 0
end

local function charge(way)
  local r, c = counts_of(way.leaf)
  if not (way.competes or other_lanes_wait(way.lane)) then
    add_running(way.leaf, r, c + at)
  else
    local due = r * (at + RUNNING_S)
    local seconds, rows, of_run = due - c - at, way.rows or {}, tonumber(redis.call('HGET', run, 'weight') or '') or 1
    local weights = {weight_of(rows.env), setting(rows.run, 'weight') or of_run, weight_of(rows.team)}
    for i, step in ipairs(steps_of(way)) do
      local key = open_set(step[1])
      local point = later(redis.call('ZSCORE', key, step[2]), seconds / math.max(1e-3, weights[i]), at, half)
      redis.call('ZADD', key, stamp(point), step[2])
    end
    add_running(way.leaf, r, due)
    local lane = facts[way.lane]
    redis.call('HSET', sched, 'u|' .. way.lane, stamp(later(lane.point, seconds, at, half)))
  end
  local is_new = redis.call('HSET', took, slot, nonce .. ' ' .. way.id) == 1
  if is_new and redis.call('TTL', took) < 0 then redis.call('EXPIRE', took, TOOK_TTL_S) end
end

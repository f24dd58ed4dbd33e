-- Lanes in the order in which a free slot serves them. A lane with a reserved share of the slot-time goes first
-- while it has had less than that, and last when it has had more; in between, lanes are in order of preference,
-- and by their weighted usage where that is equal. Lanes for evaluations have a share reserved unless an operator
-- says otherwise.
local EVAL_RESERVED = 0.25
local facts, half, at = {}, HALF_LIFE_S, now
local fleet_row, has_limits

local function read_lanes()
  local names = {'at', 'ahead', 'fleet', 'limits'}
  for i, lane in ipairs(lanes) do names[2 * i + 3], names[2 * i + 4] = 'u|' .. lane, 'lane|' .. lane end
  local values = redis.call('HMGET', sched, unpack(names))
  fleet_row, has_limits = values[3], values[4]
  half = math.max(1, setting(fleet_row, 'half_life_s') or HALF_LIFE_S)
  at = steady(values[1], values[2])
  for i, lane in ipairs(lanes) do
    local point, row = values[2 * i + 3] or nil, values[2 * i + 4] or nil
    facts[lane] = {place = i, row = row, point = point}
  end
end

local function in_order()
  local sum, order = 0, {}
  for _, lane in pairs(facts) do
    lane.used = used_at(lane.point, at, half)
    sum = sum + lane.used
  end
  for i, name in ipairs(lanes) do
    local lane = facts[name]
    local is_eval = string.match(name, '^eval%f[%W]') and not string.find(name, '.quarantine', 1, true)
    lane.order, lane.weight = setting(lane.row, 'order') or i, weight_of(lane.row)
    lane.reserved = setting(lane.row, 'reserved') or is_eval and EVAL_RESERVED or 0
    lane.class = lane.reserved == 0 and 2 or lane.used < lane.reserved * sum and 1 or sum == 0 and 1 or 3
    order[i] = name
  end
  table.sort(order, function(a, b)
    local one, two = facts[a], facts[b]
    if one.class ~= two.class then return one.class < two.class end
    if one.order ~= two.order then return one.order < two.order end
    local x, y = one.used / one.weight, two.used / two.weight
    if x ~= y then return x < y end
    return one.place < two.place
  end)
  return order
end

-- Whether jobs of the lane may begin: it is below its own limit, and its circuit breaker is closed.
local function may_serve(name)
  local row, field = facts[name].row, 'lane|' .. name
  if row and is_exhausted(field, row, tonumber(redis.call('HGET', running, field) or '') or 0) then return false end
  return breaker_free_at(breaker_of(name)) <= now
end

-- The nodes of a way and the children on it, from env to team.
local function steps_of(way)
  local in_team = way.lane .. '|' .. way.team
  return {{in_team .. '|' .. way.run_id, way.env}, {in_team, way.run_id}, {way.lane, way.team}}
end

-- What is known of the groups of a call before it, and the beginning of new ones.

-- Whether any sample of a group was claimed in this life of the run.
local function any_claimed(group)
  local claims = {}
  for index = 0, tonumber(group.planned) - 1 do claims[#claims + 1] = group.digest .. '.' .. index end
  local found = false
  in_pieces(claims, function(some)
    for _, known in ipairs(redis.call('SMISMEMBER', claimed, unpack(some))) do found = found or known == 1 end
  end)
  return found
end

-- By id: size, samples and policy of the group if it has begun, else those of this call. is_open: it has
-- begun and is not closed. is_over: it was closed, and a sample that comes now is surplus. A closed
-- group without any claim belongs to a former life.
local known_groups = {}
local function known_group(group)
  local g = known_groups[group.id]
  if g then return g end
  g = hash(prefix .. 'group:' .. group.id, 'size', 'planned', 'policy', 'refills', 'requeues', 'closed', 'begun')
  local is_open = g.size and not g.closed
  local is_over = not is_open and any_claimed(group)
  if g.planned then g.planned = string.format('%.0f', g.planned - (g.refills or 0) - (g.requeues or 0)) end
  if not g.size or g.closed and not is_over then g = group end
  g = {size = g.size, planned = g.planned, policy = g.policy, is_open = is_open, is_over = is_over, begun = is_open and g.begun}
  known_groups[group.id] = g
  return g
end

local function begin_group(group)
  local key = prefix .. 'group:' .. group.id
  forget(key)  -- from a former life
  redis.call('HSET', key, 'created', stamp(now), 'size', group.size, 'env', group.env,
    'instance_id', group.instance_id, 'planned', group.planned, 'policy', group.policy)
  if group.needs ~= '' then redis.call('HSET', key, 'needs', group.needs) end
  known_groups[group.id].is_open = true
end

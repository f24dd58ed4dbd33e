-- The group as it was before this record, and its members.
local is_measured = score ~= ''

local function read_group()
  local g = hash(group, 'size', 'planned', 'refills', 'requeues', 'policy', 'env', 'instance_id')
  local policy = cjson.decode(g.policy or '{}')
  local size = tonumber(g.size or '1')
  return {
    size = size,
    planned = tonumber(g.planned or size),
    refills = tonumber(g.refills or '0'),
    requeues = tonumber(g.requeues or '0'),
    policy = policy,
    env = g.env,
    instance_id = g.instance_id,
    -- Current version of the run; read only if the policy's age is bounded.
    version = policy.max_policy_lag and tonumber(redis.call('HGET', run, 'policy_version') or ''),
    evicts_stale = policy.on_stale == 'drop' or policy.on_stale == 'requeue',
  }
end

local function is_too_old(facts, oldest)
  return facts.version and oldest and oldest ~= '' and facts.version - tonumber(oldest) > facts.policy.max_policy_lag
end

-- Add this record to its group as m: (measured) or x: (failed); z: is for stale ones. Each is
-- {name of the body, score, bytes, oldest policy version, when}.
local function add_member(facts, name)
  redis.call('HSET', group, (is_measured and 'm:' or 'x:') .. sample_index,
    cjson.encode({name, score, #body, policy_oldest, stamp(now)}))
  facts.measured = redis.call('HINCRBY', group, 'measured', is_measured and 1 or 0)
  facts.failed = redis.call('HINCRBY', group, 'failed', is_measured and 0 or 1)
end

-- Members by kind (m, x, z) and index; an index has at most one.
local function read_members(facts)
  local fields, found = {}, {m = {}, x = {}, z = {}}
  local flat = redis.call('HGETALL', group)
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  for index = 0, facts.planned - 1 do
    for kind, members in pairs(found) do
      local raw = fields[kind .. ':' .. index]
      members[index] = raw and cjson.decode(raw)
    end
  end
  facts.created = fields['created']
  return found
end

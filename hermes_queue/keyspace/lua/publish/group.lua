-- The group as it was before this record, and its members.

-- A whole number in a field, which a producer could write; `otherwise` if it is none.
local function whole(text, otherwise)
  return text and string.find(text, '^%d+$') and math.min(tonumber(text), SAMPLES_MOST) or otherwise
end

-- A counter of members of these kinds (m, x, z).
local function counted(text, ...)
  if not text or whole(text) then return whole(text, 0) end
  local kinds, found = {...}, 0
  for _, field in ipairs(redis.call('HKEYS', group)) do
    for _, kind in ipairs(kinds) do found = found + (string.find(field, '^' .. kind .. ':%d') and 1 or 0) end
  end
  return found
end

local function policy_of(text)
  local readable, policy = pcall(cjson.decode, text or '{}')
  policy = readable and type(policy) == 'table' and policy or {}
  for _, name in ipairs({'max_refills', 'max_requeues', 'stop_after_equal', 'max_policy_lag'}) do
    policy[name] = tonumber(policy[name]) or nil
  end
  return policy
end

local function read_group()
  local g = hash(group, 'size', 'planned', 'refills', 'requeues', 'policy', 'env', 'instance_id', 'measured', 'failed')
  local policy, size = policy_of(g.policy), whole(g.size, 1)
  return {
    size = size,
    planned = whole(g.planned, size),
    refills = whole(g.refills, 0),
    requeues = whole(g.requeues, 0),
    measured = counted(g.measured, 'm'),
    failed = counted(g.failed, 'x', 'z'),
    policy = policy,
    env = g.env,
    instance_id = g.instance_id,
    -- Current version of the run, if the policy's age is bounded.
    version = policy.max_policy_lag and tonumber(its_run and its_run.policy_version or ''),
    evicts_stale = policy.on_stale == 'drop' or policy.on_stale == 'requeue',
  }
end

local function is_too_old(facts, oldest)
  return facts.version and oldest and oldest ~= '' and facts.version - tonumber(oldest) > facts.policy.max_policy_lag
end

-- Add this record to its group as m: (measured) or x: (failed); z: is for stale ones. Each is
-- {name of the body, score, bytes, oldest policy version, when, seconds of its slot}. s: is its summary, until the group closes.
local function add_member(facts, name, held_s)
  local kind, counter = 'm:', 'measured'
  if not is_measured then kind, counter = 'x:', 'failed' end
  facts[counter] = facts[counter] + 1
  redis.call('HSET', group, kind .. sample_index, cjson.encode({name, score, body_bytes, policy_oldest, stamp(now), held_s}),
    'measured', facts.measured, 'failed', facts.failed)
end

-- Keep the summary of a member whose group stays open.
local function keep_summary()
  if summary ~= '' then redis.call('HSET', group, 's:' .. sample_index, summary) end
end

-- Members by kind (m, x, z) and index, of which an index has at most one, and summaries (s).
local function read_members(facts)
  local fields, found, summaries = {}, {m = {}, x = {}, z = {}}, {}
  local flat = redis.call('HGETALL', group)
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  for index = 0, facts.planned - 1 do
    for kind, members in pairs(found) do
      local raw = fields[kind .. ':' .. index]
      members[index] = raw and member_of(raw)
    end
    summaries[index] = fields['s:' .. index]
  end
  found.s = summaries
  facts.created = fields['created']
  return found
end

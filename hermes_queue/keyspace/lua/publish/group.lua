-- @include publish/recount
-- The group as it was before this record, and its members.

-- A whole number in a field, which a producer could write; nil if it is none.
local function whole(text)
  return text and #text < 16 and string.find(text, '^%d+$') and math.min(tonumber(text), 8192) or nil
end

local function policy_of(text)
  local readable, policy = pcall(cjson.decode, text or '{}')
  policy = readable and type(policy) == 'table' and policy or {}
  for _, name in ipairs({'max_refills', 'max_requeues', 'stop_after_equal', 'max_policy_lag'}) do
    policy[name] = tonumber(policy[name])
  end
  return policy
end

local function read_group()
  local g = hash(group, 'size', 'planned', 'policy', 'env', 'measured', 'failed')
  local policy, size = policy_of(g.policy), whole(g.size) or 1
  return {
    size = size,
    planned = whole(g.planned) or size,
    measured = g.measured and (whole(g.measured) or recounted('m')) or 0,
    failed = g.failed and (whole(g.failed) or recounted('x') + recounted('z')) or 0,
    policy = policy,
    env = g.env,
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
  local row = cjson.encode({name, score, body_bytes, policy_oldest, stamp(now), held_s})
  local fields = {kind .. sample_index, row, counter, facts[counter]}
  if summary ~= '' then fields[5], fields[6] = 's:' .. sample_index, summary end
  redis.call('HSET', group, unpack(fields))
end

-- The end of a group: dropped by its policy, or published as an entry of the results stream.

local function mean_and_deviation(scores)
  if #scores == 0 then return '', '' end
  local sum, square = 0, 0
  for _, s in ipairs(scores) do sum = sum + s end
  local mean = sum / #scores
  for _, s in ipairs(scores) do square = square + (s - mean) * (s - mean) end
  return string.format('%.17g', mean), string.format('%.17g', math.sqrt(square / #scores))
end

-- Whether a trainer paces the run; `ahead` has its groups that are not trained, see begin/pace.lua.
local ahead = run .. ':ahead'
local function is_paced() return its_run and its_run.max_ahead end

local function why_dropped(policy, group_end)
  if policy.drop_zero_variance and group_end.equal and #group_end.scores > 1 then return 'zero_variance' end
  if policy.on_incomplete == 'drop' and not group_end.complete then return 'incomplete' end
  if #group_end.members == 0 then return 'stale' end  -- no other reason leaves a group without members
end

local function drop(facts, group_end, why)
  for _, member in ipairs(group_end.members) do
    redis.call('EXPIRE', prefix .. 'body:' .. member[1], finished_ttl_s)
  end
  redis.call('DECRBY', unread_bytes, group_end.bytes)
  if is_paced() then healing('HDEL', ahead, group_id) end
  redis.call('HSET', group, 'dropped', why)
  lose('dropped', group_end.joined, group_end.held_s)
  count('dropped')
  count('dropped_' .. why)
  total(totals, 1, 'groups', facts.env, 'dropped')
  return 'dropped'
end

-- Summaries of the members as a JSON list, null for what is missing or would make the entry too large.
local SUMMARIES_MOST = 65536  -- bytes of all
local function summed_up(members)
  local texts, bytes = {}, 0
  for i, member in ipairs(members) do
    bytes = bytes + #member[3]
    texts[i] = member[3] ~= '' and bytes <= SUMMARIES_MOST and member[3] or 'null'
  end
  return '[' .. table.concat(texts, ',') .. ']'
end

local function listed(names) return #names > 0 and cjson.encode(names) or '[]' end

local function publish(facts, group_end)
  local mean, deviation = mean_and_deviation(group_end.scores)
  local names, taken = {}, {}
  for i, member in ipairs(group_end.members) do names[i], taken[i] = member[1], member[2] end
  local entry = redis.call('XADD', results, '*', 'schema', schema_version, 'codec', codec, 'run_id', run_id,
    'group_id', group_id, 'env', facts.env or '', 'instance_id', facts.instance_id or '',
    'size', tostring(facts.size), 'complete', group_end.complete and '1' or '0', 'mean', mean, 'std', deviation,
    'bytes', tostring(group_end.bytes), 'created', facts.created or stamp(now), 'finished', stamp(now),
    'members', cjson.encode(names), 'extras', listed(group_end.extras),
    'policy_version', its_run and its_run.policy_version or '',
    'stale', listed(group_end.stale), 'published', cjson.encode(taken),
    'summaries', summed_up(group_end.members))
  if is_paced() and healing('HEXISTS', ahead, group_id) == 1 then redis.call('HSET', ahead, group_id, entry) end
  if #group_end.stale > 0 then count('stale_labelled', #group_end.stale) end
  count('groups')
  total(totals, 1, 'groups', facts.env, 'published')
  return 'group'
end

local function close(facts, group_end)
  redis.call('HSET', group, 'closed', stamp(now))
  redis.call('EXPIRE', group, finished_ttl_s)
  local summaries = {}
  for index in pairs(group_end.known.s) do summaries[#summaries + 1] = 's:' .. index end
  for first = 1, #summaries, 1000 do
    redis.call('HDEL', group, unpack(summaries, first, math.min(first + 999, #summaries)))
  end
  if group_end.stopped_early then count('stopped_early') end
  if not group_end.complete then count('incomplete') end
  local why = why_dropped(facts.policy, group_end)
  if why then return drop(facts, group_end, why) end
  return publish(facts, group_end)
end

-- Whether this record decides its group, and who its members are.

-- Nil while the group is open; else its measured members and the consequences of their scores.
local function decide(facts)
  local measured, planned, size, policy = facts.measured, facts.planned, facts.size, facts.policy
  local exhausted = measured + facts.failed >= planned
  local hopeless = policy.on_incomplete == 'drop' and planned - facts.failed < size
  local watched = (policy.stop_after_equal or 0) > 0 and measured >= policy.stop_after_equal
  if measured < size and not (exhausted or hopeless or watched) then return nil end
  local known = read_members(facts)
  local joined, scores, stale, equal = 0, {}, {}, true
  for index = 0, planned - 1 do
    local m = known.m[index]
    if m then
      joined = joined + 1
      scores[#scores + 1] = tonumber(m[2])  -- nil of an unscored one adds nothing
      equal = equal and scores[#scores] == scores[1]
      if is_too_old(facts, m[4]) then stale[#stale + 1] = string.match(m[1], '^[^~]*') end
    end
  end
  local stopped_early = watched and equal and #scores >= policy.stop_after_equal and measured < size
  if measured < size and not (exhausted or hopeless or stopped_early) then return nil end
  return {known = known, scores = scores, equal = equal, stale = stale, joined = joined, complete = joined == size,
    stopped_early = stopped_early, fill_up = exhausted}
end

-- Determine the group's members, ordered by index: {name of the body, when, summary} each, and names of extras.
-- Samples that still run are revoked. Failed ones fill the group up if all others have ended. Returns a
-- warning about the run's budget or ''.
local function gather(facts, group_end)
  local known, warning = group_end.known, ''
  local members, extras, room = {}, {}, facts.size - group_end.joined
  group_end.bytes, group_end.held_s = 0, 0
  for index = 0, facts.planned - 1 do
    local m, x, z = known.m[index], known.x[index], known.z[index]
    local joins = m or group_end.fill_up and room > 0 and x
    if joins then
      if not m then room = room - 1 end
      -- '': published by an older version
      local own = index == tonumber(sample_index)
      members[#members + 1] = {joins[1], joins[5], own and summary or known.s[index] or ''}
      group_end.bytes = group_end.bytes + joins[3]
      if m then group_end.held_s = group_end.held_s + (m[6]) end
    elseif x then
      extras[#extras + 1] = x[1]
      redis.call('EXPIRE', prefix .. 'body:' .. x[1], finished_ttl_s)
      redis.call('DECRBY', unread_bytes, x[3])
    elseif z then
      extras[#extras + 1] = z[1]
    else
      local other = group_id .. '.' .. index
      local key = prefix .. 'traj:' .. other
      local sample = fields_of(key, 'state', 'floor', 'reserved', 'journal', 'begun', 'shared', 'handed', 'leaf')
      if sample.state == 'queued' or sample.state == 'running' then
        local paused = settle(key, other, sample, 'surplus')
        if warning == '' then warning = paused end
        count('surplus')
        extras[#extras + 1] = body_name(other, sample.floor)
      end
    end
  end
  group_end.members, group_end.extras = members, extras
  return warning
end

-- @lazy end_group
-- @include entries, members, publish/lose, publish/close
-- The end of a group, and who its members are.

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
  facts.created, facts.instance_id = fields.created, fields.instance_id
  return found
end

-- The measured members and the consequences of their scores; nil if the group stays open: it would end early.
local function measured_members(facts, exhausted, watched, ends_anyway)
  local measured, planned, size, policy = facts.measured, facts.planned, facts.size, facts.policy
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
  if not (ends_anyway or stopped_early) then return nil end
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
      members[#members + 1] = {joins[1], joins[5], known.s[index] or ''}
      group_end.bytes = group_end.bytes + joins[3]
      if m then group_end.held_s = group_end.held_s + m[6] end
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

-- End the group unless that depends on its members' scores, and these differ. Returns the verdict and a warning about
-- the run's budget or ''; nil if it stays open.
local function end_group(facts, exhausted, watched, ends_anyway)
  local group_end = measured_members(facts, exhausted, watched, ends_anyway)
  if not group_end then return nil end
  local warning = gather(facts, group_end)
  return close(facts, group_end), warning
end

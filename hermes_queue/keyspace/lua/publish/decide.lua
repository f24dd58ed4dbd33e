-- @include publish/members
-- Whether this record decides its group.

-- End the group if this record decides it; returns as `end_group`.
local function decide(facts)
  local measured, planned, size, policy = facts.measured, facts.planned, facts.size, facts.policy
  local exhausted = measured + facts.failed >= planned
  local hopeless = policy.on_incomplete == 'drop' and planned - facts.failed < size
  local watched = (policy.stop_after_equal or 0) > 0 and measured >= policy.stop_after_equal
  local ends_anyway = measured >= size or exhausted or hopeless
  if not (ends_anyway or watched) then return nil end
  return end_group(facts, exhausted, watched, ends_anyway)
end

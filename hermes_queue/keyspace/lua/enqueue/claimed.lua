-- Whether groups were claimed in this life of the run, in part or whole.

-- Whether any sample of a group but `own` was claimed in this life.
local function any_claimed(digest, planned, own)
  local claims = {}
  for index = 0, tonumber(planned) - 1 do
    if index ~= tonumber(own) then claims[#claims + 1] = digest .. '.' .. index end
  end
  if #claims == 0 then return false end
  for _, known in ipairs(redis.call('SMISMEMBER', claimed, unpack(claims))) do
    if known == 1 then return true end
  end
  return false
end

-- Whether its group was closed without it. A closed group without any claim belongs to a former life.
local function is_closed(group, claim, planned)
  local g = hash(group, 'size', 'closed')
  if g.size and not g.closed then return false end
  local digest, own = string.match(claim, '^(.*)%.(%d+)$')
  if any_claimed(digest, planned, own) then return true end
  forget_hash(group)  -- from a former life
  return false
end

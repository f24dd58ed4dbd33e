-- Which groups of this life of the run have been claimed, in part or closed.

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

-- Whether its group was closed without it. One that is closed, of which nothing is claimed, is of a former life.
local function is_closed(group, claim, planned)
  local g = hash(group, 'size', 'closed')
  if g.size and not g.closed then return false end
  local digest, own = string.match(claim, '^(.*)%.(%d+)$')
  if any_claimed(digest, planned, own) then return true end
  forget_hash(group)  -- of a former life
  return false
end

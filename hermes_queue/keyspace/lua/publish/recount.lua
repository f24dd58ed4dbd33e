-- @lazy recounted
-- The members of a kind (m, x, z) in a group whose counter is no number.
local function recounted(kind)
  local found = 0
  for _, field in ipairs(redis.call('HKEYS', group)) do
    if string.find(field, '^' .. kind .. ':%d') then found = found + 1 end
  end
  return found
end

-- Checks the numbers in a script's arguments before its first write: a command that fails half-way
-- through a script does not undo the writes before it.
local EXACT = 9007199254740992  -- 2^53: a double cannot represent every larger integer

-- Nil, or an error reply that names the value.
local function wrong_number(name, value, least, most, is_whole)
  local number = tonumber(value)
  -- NaN fails both comparisons; Redis' own commands accept neither blanks nor 0x10.
  if number and number >= least and number <= most then
    if is_whole and string.find(value, '^%-?%d+$') or not is_whole and not string.find(value, '[xX%s]') then return nil end
  end
  return redis.error_reply('NUMBER ' .. name .. ' is ' .. string.sub(value, 1, 60)
    .. ', not a' .. (is_whole and ' whole' or '') .. ' number from ' .. string.format('%.17g', least)
    .. ' to ' .. string.format('%.17g', most) .. '; nothing was changed')
end

-- The same for a list of {name, value, least, most, whole number?}.
local function refused_number(checked)
  for _, each in ipairs(checked) do
    local refused = wrong_number(unpack(each))
    if refused then return refused end
  end
end

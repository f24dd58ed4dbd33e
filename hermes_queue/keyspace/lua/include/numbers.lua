-- Checks the numbers in a script's arguments before its first write: a command that fails half-way
-- through a script does not undo the writes before it.
--
-- Returns nil, or an error reply that names the value. `checked` is a list of
-- {name, value, minimum, maximum, whole number?}.
local EXACT = 9007199254740992  -- 2^53: a double cannot represent every larger integer

local function refused_number(checked)
  for _, each in ipairs(checked) do
    local value = tonumber(each[2])
    -- NaN fails both comparisons; Redis' own commands accept neither blanks nor 0x10.
    local is_written_so = value and (each[5] and string.find(each[2], '^%-?%d+$')
      or not each[5] and not string.find(each[2], '[xX%s]'))
    if not (is_written_so and value >= each[3] and value <= each[4]) then
      return redis.error_reply('NUMBER ' .. each[1] .. ' is ' .. string.sub(each[2], 1, 60)
        .. ', not a' .. (each[5] and ' whole' or '') .. ' number from ' .. string.format('%.17g', each[3])
        .. ' to ' .. string.format('%.17g', each[4]) .. '; nothing was changed')
    end
  end
  return nil
end

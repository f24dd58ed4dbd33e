-- Redis' own clock, in seconds, and the format of times in scores and hashes.
local now, now_text
do
  local t = redis.call('TIME')
  now, now_text = tonumber(t[1]) + tonumber(t[2]) / 1e6, t[1] .. '.' .. string.sub('00000' .. t[2], -6)
end

-- To format a number takes longer than most commands.
local function stamp(at) return at == now and now_text or string.format('%.6f', at) end

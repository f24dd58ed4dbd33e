-- The name of a trajectory's body, after `body:`: its id and, from the second life on, ~ and the life.
-- `floor`: of the trajectory, nil = none, see lives.lua.
local function body_name(id, floor)
  floor = tonumber(floor or '') or 0
  return floor > 0 and id .. '~' .. string.format('%.0f', floor / 1000000) or id
end

-- A dissector for Wireshark, tested with 4.0. Put it into the folder of personal Lua plugins.
-- Version 4 is on the port of its preference; version 3 has no default port: set its preference
-- or use "Decode As". Inside TLS the streams are the same.

local HEADER_BYTES = 3
local tcp_stream = Field.new("tcp.stream")

-- Bytes as text: everything but printable ASCII is escaped.
local function shown(range)
  return (range:bytes():raw():gsub("[^ -~]", function(c)
    return string.format("\\x%02x", c:byte())
  end))
end

local function install(version)
  local proto, f = version.proto, version.fields
  local bad = ProtoExpert.new(proto.name:lower() .. ".malformed", "Malformed",
    expert.group.MALFORMED, expert.severity.ERROR)
  proto.experts = { bad }
  local listed = {}
  for _, field in pairs(f) do listed[#listed + 1] = field end
  proto.fields = listed
  proto.prefs.port = Pref.uint("TCP port", version.port, "0 for none")

  -- Per TCP stream: the packet in which a preamble of the client was seen, so that it is found
  -- again when a packet is dissected a second time.
  local answered, greeted = {}, {}

  local function add_keys(tree, range)
    local count = range(0, 1):uint()
    tree:add(f.count, range(0, 1))
    local at = 1
    for _ = 1, count do
      if at >= range:len() then return "a key is missing" end
      local size = range(at, 1):uint()
      if at + 1 + size > range:len() then return "a key runs past the body" end
      if size == 0 then return "a key is empty" end
      tree:add(f.key, range(at + 1, size), shown(range(at + 1, size)))
      at = at + 1 + size
    end
    if at ~= range:len() then return "bytes are left after the keys" end
  end

  -- Adds the fields (name, size, whether it is text) of a body that has a legal length; returns what is wrong, if anything.
  local function add_fields(tree, frame, buffer, at, length)
    local stop = at + length
    for _, field in ipairs(frame.fields) do
      local name, size = field[1], field[2]
      if size == "keys" then
        return add_keys(tree, buffer(at, stop - at))
      elseif size == "tail" then
        if stop > at then tree:add(f[name], buffer(at, stop - at), shown(buffer(at, stop - at))) end
        return nil
      elseif field[3] then
        tree:add(f[name], buffer(at, size), shown(buffer(at, size)))
      else
        tree:add(f[name], buffer(at, size))
      end
      at = at + size
    end
  end

  -- The preamble that stands here, if one does.
  local function preamble_at(buffer, at, from_server, stream, number)
    local p = version.preambles
    local left = buffer:len() - at
    if from_server then
      local magic = p.greeting.magic
      local have = math.min(left, #magic)
      local first = buffer:raw(at, have)
      -- "T" also begins a frame, whose second byte is the zero of its length.
      if have >= 2 and first == magic:sub(1, have) then return p.greeting end
      if p.verdict and first:byte(1) <= 1 then return p.verdict end
    elseif p.answer and at == 0 and greeted[stream]
        and (answered[stream] or number) == number then
      return p.answer
    end
  end

  local function want(pinfo, at, missing)
    pinfo.desegment_offset = at
    pinfo.desegment_len = missing or DESEGMENT_ONE_MORE_SEGMENT
  end

  -- Dissects what begins at `at`; returns where the next begins, or nil if bytes are missing.
  local function dissect_one(buffer, pinfo, root, at, from_server, names)
    local stream = tcp_stream().value
    local left = buffer:len() - at
    local preamble = preamble_at(buffer, at, from_server, stream, pinfo.number)
    if preamble then
      if left < preamble.low then return want(pinfo, at, preamble.low - left) end
      if preamble == version.preambles.greeting then greeted[stream] = true end
      if preamble == version.preambles.answer then answered[stream] = pinfo.number end
      local tree = root:add(proto, buffer(at, preamble.low), "Ticketing " .. preamble.name)
      add_fields(tree, preamble, buffer, at, preamble.low)
      names[#names + 1] = preamble.name
      return at + preamble.low
    end
    local frames = from_server and version.server or version.client
    local frame = frames[buffer(at, 1):uint()]
    if not frame then
      local tree = root:add(proto, buffer(at), "Ticketing: unknown op")
      tree:add_proto_expert_info(bad, "unknown op")
      names[#names + 1] = "unknown op"
      return buffer:len()
    end
    if left < HEADER_BYTES then return want(pinfo, at) end
    local length = buffer(at + 1, 2):uint()
    if length < frame.low or length > frame.high then
      local tree = root:add(proto, buffer(at), "Ticketing " .. frame.name)
      local takes = frame.low .. " to " .. frame.high
      tree:add_proto_expert_info(bad, "length " .. length .. " is not " .. takes)
      names[#names + 1] = frame.name .. " (bad length)"
      return buffer:len()
    end
    if left < HEADER_BYTES + length then return want(pinfo, at, HEADER_BYTES + length - left) end
    local tree = root:add(proto, buffer(at, HEADER_BYTES + length), "Ticketing " .. frame.name)
    tree:add(f.op, buffer(at, 1), frame.op .. " " .. frame.name)
    tree:add(f.length, buffer(at + 1, 2))
    local wrong = add_fields(tree, frame, buffer, at + HEADER_BYTES, length)
    if wrong then tree:add_proto_expert_info(bad, wrong) end
    names[#names + 1] = frame.name
    return at + HEADER_BYTES + length
  end

  function proto.dissector(buffer, pinfo, root)
    local from_server = pinfo.src_port == pinfo.match_uint
    local at, names = 0, {}
    pinfo.cols.protocol = proto.name
    while at and at < buffer:len() do
      at = dissect_one(buffer, pinfo, root, at, from_server, names)
    end
    if #names > 0 then pinfo.cols.info = table.concat(names, ", ") end
  end

  local table_of_ports = DissectorTable.get("tcp.port")
  table_of_ports:add_for_decode_as(proto)
  local port = 0
  local function register()
    if port > 0 then table_of_ports:remove(port, proto) end
    port = proto.prefs.port
    if port > 0 then table_of_ports:add(port, proto) end
  end
  proto.prefs_changed = register
  register()
  function proto.init() answered, greeted = {}, {} end
end

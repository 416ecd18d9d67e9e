{%- macro _cdc_float_digits(value, digits) -%}
{%- set type, least, lengths = ('double', 9007199254740992, '15, 16, 17') if digits == 15 else ('float', 16777216, '6, 7, 8, 9') -%}
case when abs({{ value }}) >= {{ least }} and abs({{ value }}) < 9223372036854775808D then concat(if({{ value }} < 0, '-', ''), element_at(transform(
  filter(
    transform(transform(array({{ lengths }}), _cdc_p -> struct(abs(cast({{ value }} as bigint)) as whole,
        cast(rpad('1', greatest(length(cast(abs(cast({{ value }} as bigint)) as string)) - _cdc_p, 0) + 1, '0') as bigint) as unit)),
      _cdc_n -> struct(_cdc_n.whole, _cdc_n.unit * (_cdc_n.whole div _cdc_n.unit + if(2 * (_cdc_n.whole % _cdc_n.unit) > _cdc_n.unit or (2 * (_cdc_n.whole % _cdc_n.unit) = _cdc_n.unit and (_cdc_n.whole div _cdc_n.unit) % 2 = 1), 1, 0)) as shown)),
    _cdc_n -> _cdc_n.shown = _cdc_n.whole or cast(concat(cast(_cdc_n.shown - if(_cdc_n.shown < _cdc_n.whole, 1, 0) as string), '.5') as {{ type }}) = abs({{ value }})),
  _cdc_n -> concat(substr(cast(_cdc_n.shown as string), 1, 1), '.', rtrim('0', substr(cast(_cdc_n.shown as string), 2)), 'E', cast(length(cast(_cdc_n.shown as string)) - 1 as string))), 1))
else cast({{ value }} as string) end
{%- endmacro -%}

{% test cdc_unique(model, columns) %}
select {{ columns | join(', ') }}, count(*) as copies
from {{ model }}
group by {{ columns | join(', ') }}, to_json(_cdc_text)
having count(*) > 1
{% endtest %}
